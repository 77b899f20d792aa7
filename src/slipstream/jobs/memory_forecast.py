"""Memory forecast of a job, from the forecasts of training and studies."""

from __future__ import annotations

from slipstream.core.capacity import total_memory
from slipstream.studies.config import StudyConfig
from slipstream.studies.search import forecast
from slipstream.studies.search.session import PoolFactory
from slipstream.studies.search.study_plan import StudyPlan
from slipstream.studies.space import SearchSpace
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import check_memory, resolve_num_envs

_LIBRARIES = 192 * 2**20  # bytes; short trainings used 130 to 145 MiB


def forecast_run_memory(config: RunConfig) -> int:
    """Return the bytes of a run; loads its data.

    Raises:
        SlipstreamError: the environment cannot be created.
        ResourceError: this machine can never hold it.
    """
    config, _ = config.with_opponent()
    environment = resolve_environment(config.env_name, config.env_settings)
    config, _ = resolve_num_envs(config, environment)
    return _shared_memory(environment) + check_memory(config, environment, total_memory())


def forecast_study_memory(
    base: RunConfig, study: StudyConfig, space: SearchSpace, workers: int | None
) -> int:
    """Return the bytes of a study; loads its data.

    Args:
        base, study, space: see `prepare_study` of `studies/start.py`.
        workers: number of processes; None: one per core.

    Raises:
        SlipstreamError, ResourceError: as for `forecast_run_memory`.
    """
    survey = PoolFactory(workers, None).load_env(base, study)
    plan = StudyPlan(base, study, space, survey.num_folds, survey.spec.market)
    seen, total = survey.observed_bytes, total_memory()
    forecast.check_memory(plan, survey.spec, seen, memory=total)
    data = _shared_memory(resolve_environment(base.env_name, base.env_settings))
    return data + forecast.estimate_resources(plan, survey.spec, seen, workers).memory


def _shared_memory(environment: Environment) -> int:
    """Return the bytes of libraries, and of the data that all environments share."""
    rules = environment.part(KernelEnvironment)
    return _LIBRARIES + sum(int(array.nbytes) for array in (rules.data if rules else ()))
