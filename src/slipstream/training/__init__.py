"""The loop of one run, in this process, in others and on other machines."""
