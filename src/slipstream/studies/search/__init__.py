"""Who is asked and judged when: trials, rungs, plan, scheduler, in virtual time."""
