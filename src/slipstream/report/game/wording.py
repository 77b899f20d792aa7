"""The sentences of a game's report."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.report.inputs import Chosen, Game, Outcomes, RunEvaluation
from slipstream.report.numbers import Measured, number, share, spread
from slipstream.report.statistics import Floats

COLLAPSED = 0.2  # of the chosen policy's lead over a random one is lost by the last policy


def headline(
    agents: Sequence[Measured], shown: int, random: Measured | None, count: int, kind: str = "seeds"
) -> str:
    """The verdict: how the shown one of the members does, and how many of them learned.

    Args:
        agents: of all members; shown: which of them is.
        random: of a random policy.
        count: episodes of each.
        kind: what the members are.
    """
    agent = agents[shown]
    lead = f"Mean return {agent} on {count} fresh episodes"
    if len(agents) > 1:
        lead += f" by the best of {len(agents)} {kind}"
    learned = 0 if random is None else sum(one.above(random) for one in agents)
    if random is None:
        return f"{lead}."
    if 0 < learned < len(agents):
        beat = "beats" if learned == 1 else "beat"
        return f"{lead}; {learned} of {len(agents)} {beat} a random policy, which gets {random}."
    if agent.above(random):
        return f"{lead}; a random policy gets {random}."
    return f"{lead}: not shown to beat a random policy, which gets {random}."


def against_opponents(found: Sequence[Outcomes]) -> str:
    """The verdict of a game of two: "Wins 85 % of 100 fresh games against weak, 40 % of ..."."""
    parts = []
    for one in found:
        games = one.won + one.drawn + one.lost
        parts.append(f"{share(one.won / games)} of {games} fresh games against {one.opponent}")
    return f"Wins {', '.join(parts)}."


def last_policy(chosen: Chosen) -> Measured | None:
    """What the last policy scores on the fresh episodes."""
    return None if chosen.last is None else Measured(chosen.last, chosen.last_error)


def has_collapsed(agent: Measured, last: Measured | None, random: Measured | None) -> bool:
    """Whether training lost, after the chosen policy, a good part of what had been learned."""
    if last is None or not agent.above(last):
        return False
    lead = agent.mean - (random.mean if random is not None else 0.0)
    return agent.mean - last.mean > COLLAPSED * lead > 0.0


def collapse(
    run: RunEvaluation, game: Game, agents: Sequence[Measured], random: Measured | None
) -> list[str]:
    """A warning for members whose last policy is far worse than the one that is shown."""
    lasts = [last_policy(one) for one in game.chosen]
    fallen = [
        index
        for index, (agent, last) in enumerate(zip(agents, lasts, strict=True))
        if has_collapsed(agent, last, random)
    ]
    if not fallen:
        return []
    if len(agents) == 1:
        return [
            f"Training collapsed: the last policy, of step {game.steps:,}, scores {lasts[0]}. The "
            f"figures are of step {game.chosen[0].steps:,}, which was chosen."
        ]
    ends = ", ".join(str(lasts[index]) for index in fallen)
    which = ", ".join(str(run.number(index)) for index in fallen)
    some = f"members {which}" if len(fallen) > 1 else f"member {which}"
    return [
        f"Training collapsed for {len(fallen)} of {len(agents)} members: the last policies of "
        f"{some} score {ends} on the fresh episodes. The figures are of earlier policies, which "
        "were chosen."
    ]


def choice(game: Game, shown: Chosen, agent: Measured, episodes: int) -> list[str]:
    """Which policy is shown and why its figures are of other episodes than those that chose it."""
    tried = f"the best of {game.validations} validations" if game.validations > 1 else "validated"
    score = number(shown.score, max(agent.digits, 1))
    lines = [
        f"Shown is the policy of step {shown.steps:,} of {game.steps:,}: {tried}, with a mean "
        f"return of {score}. That figure chose it, so it may be too good; all others are of "
        f"{episodes} episodes that chose nothing."
    ]
    last = last_policy(shown)
    if game.steps < game.budget:
        lines.append(f"Training stands at step {game.steps:,} of {game.budget:,}.")
    if shown.steps == game.steps:
        lines.append("It is also the last policy.")
    elif last is not None:
        lines.append(f"The last policy, of step {game.steps:,}, scores {last} on them.")
    return lines


def sampling(agent: Measured, sampled: Floats) -> str:
    """Why the training curve differs from the evaluations."""
    if not len(sampled):
        return (
            "While training, some actions are random, so that the agent explores; evaluations take "
            "the best one. The two curves differ for that reason."
        )
    text = (
        "While training, actions are drawn from the policy, so that it explores; evaluations take "
        "the most likely action. The two curves differ for that reason"
    )
    drawn = Measured.of(sampled)
    return (
        f"{text}: the policy shown scores {drawn} with drawn actions, {agent} with the likeliest."
    )


def members(run: RunEvaluation, agents: Sequence[Measured]) -> list[str]:
    """How far the members are apart."""
    if len(agents) < 2:
        return []
    means = spread([agent.mean for agent in agents], max(agent.digits for agent in agents))
    return [f"Over {len(agents)} {run.kind} the mean return is {means}. {run.shown_is}"]


def cuts(game: Game, lengths: Sequence[int]) -> list[str]:
    """Says how many episodes nothing but the evaluation ended."""
    cut = 0 if game.longest is None else sum(length >= game.longest for length in lengths)
    if not cut:
        return []
    return [
        f"{cut} of {len(lengths)} episodes did not end by themselves and were cut after "
        f"{game.longest:,} steps (evaluation.max_steps): their returns are not whole."
    ]
