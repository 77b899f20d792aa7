"""Trials of a relational storage, written many at once.

Optuna's own way looks each number of a trial up before it is written: some 10 ms of processor a
trial. Here its rows are made as Optuna makes them, without asking: nobody else writes our trials.
The tables are Optuna's private parts: with a version that has others, its public calls are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import TrialState
from sqlalchemy.exc import ArgumentError, IntegrityError, InvalidRequestError
from sqlalchemy.orm import Session

_SCHEMA = "v3.2.0.a"  # of Optuna 3.2 to 5.0
_OTHER = (ImportError, AttributeError, TypeError, ArgumentError, InvalidRequestError)


@dataclass
class Told:
    """What a storage shall say about a trial.

    Attributes:
        params: suggestions by searched name.
        values: score by steps of a member, at rungs and the end.
        attributes: JSON-able facts: fold scores, `pruned`, `failed`.
        state: RUNNING, COMPLETE or FAIL.
        score: of a COMPLETE trial.
    """

    params: Mapping[str, Any]
    values: dict[int, float] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    state: TrialState = TrialState.RUNNING
    score: float | None = None

    def copy(self) -> Told:
        """As it is now."""
        return replace(self, values=dict(self.values), attributes=dict(self.attributes))

    def since(self, before: Told | None) -> Told | None:
        """What is new: all of it where nothing was told, None where the trial had ended."""
        if before is None:
            return self.copy()
        if before.state.is_finished():
            return None
        values = {step: one for step, one in self.values.items() if step not in before.values}
        known = before.attributes
        attributes = {key: one for key, one in self.attributes.items() if known.get(key) != one}
        return Told({}, values, attributes, self.state, self.score)


class News(NamedTuple):
    """What is new about a trial.

    Attributes:
        number: of the trial.
        identity: the storage's; None: it is not there yet.
        told: see `Told.since`.
    """

    number: int
    identity: int | None
    told: Told


def takes_rows(storage: BaseStorage) -> bool:
    """Whether it is a relational storage with the tables that are known here."""
    backend = getattr(storage, "_backend", None)
    try:
        return isinstance(backend, RDBStorage) and backend.get_head_version() == _SCHEMA
    except AttributeError:
        return False


def write_rows(
    storage: BaseStorage,
    study_id: int,
    found: Sequence[News],
    distributions: Mapping[str, BaseDistribution],
) -> dict[int, int] | None:
    """Writes all of them, or nothing.

    Args:
        storage, study_id: where; it `takes_rows`.
        found: in the order of their numbers.
        distributions: of the params.

    Returns:
        The identities of new trials by number; None: others changed the storage's trials, or
        Optuna's private parts are not as they were.
    """
    try:
        return _write(storage, study_id, found, distributions)
    except (IntegrityError, *_OTHER):  # all of it was rolled back
        return None


def _write(
    storage: Any,
    study_id: int,
    found: Sequence[News],
    distributions: Mapping[str, BaseDistribution],
) -> dict[int, int] | None:
    from optuna.storages._rdb import models

    now, new = datetime.now(), [one for one in found if one.identity is None]
    with Session(storage._backend.engine) as session, session.begin() as writing:
        models.StudyModel.find_or_raise_by_id(study_id, session, for_update=True)
        rows: dict[int, Any] = {}
        for number, _, told in new:
            facts = {"study_id": study_id, "number": number, "state": told.state}
            rows[number] = models.TrialModel(**facts, datetime_start=now)
        session.add_all(rows.values())
        session.flush()  # their identities are known from here on
        own = _follow(list(rows.values()), study_id, session, models.TrialModel)
        for number, identity, told in found if own else ():
            if identity is not None:
                rows[number] = session.get(models.TrialModel, identity)
            row = rows[number]
            if identity is not None and (row is None or row.state.is_finished()):
                own = False
                break
            row.state = told.state
            if told.state.is_finished():
                row.datetime_complete = now
            session.add_all(_parts(models, row.trial_id, told, distributions))
        if not own:
            writing.rollback()
            return None
        return {number: rows[number].trial_id for number, _, _ in new}


def _follow(made: Sequence[Any], study_id: int, session: Session, model: Any) -> bool:
    """Whether new trials have the numbers that their place in the storage gives them."""
    if not made:
        return True
    in_order = sorted(made, key=lambda row: row.trial_id)
    trials = session.query(model).filter_by(study_id=study_id)
    before = trials.filter(model.trial_id < in_order[0].trial_id).count()
    return [row.number for row in in_order] == list(range(before, before + len(made)))


def _parts(
    models: Any, identity: int, told: Told, distributions: Mapping[str, BaseDistribution]
) -> Iterator[Any]:
    """Rows of a trial in the tables beside its own."""
    stored: tuple[Any, Any]
    for name, value in told.params.items():
        kind = distributions[name]
        yield models.TrialParamModel(
            trial_id=identity,
            param_name=name,
            param_value=kind.to_internal_repr(value),
            distribution_json=distribution_to_json(kind),
        )
    for key, fact in told.attributes.items():
        text = json.dumps(fact)
        yield models.TrialUserAttributeModel(trial_id=identity, key=key, value_json=text)
    for step, value in told.values.items():
        stored = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)
        yield models.TrialIntermediateValueModel(
            trial_id=identity,
            step=step,
            intermediate_value=stored[0],
            intermediate_value_type=stored[1],
        )
    if told.score is not None:
        stored = models.TrialValueModel.value_to_stored_repr(told.score)
        yield models.TrialValueModel(
            trial_id=identity, objective=0, value=stored[0], value_type=stored[1]
        )
