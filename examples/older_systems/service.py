"""A training service as older systems had one: jobs in a queue, without a server.

python examples/older_systems/service.py [STEPS]
"""

import sys

from slipstream import AgentTrainingService, VectorizedEnvConfig

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000

service = AgentTrainingService("trainings")
settings = VectorizedEnvConfig(
    env_type="SubprocVecEnv", num_envs=8, max_concurrent_envs=16, enable_monitoring=True
)
jobs = {
    name: service.submit(name, settings, total_timesteps=steps) for name in ("cartpole", "pendulum")
}
for name, job in jobs.items():
    state = service.wait(job)
    results = service.results(job)
    print(
        f"{name}: job {job} {state}, score {results['scores'][0]['best_score']:.1f}, "
        f"{results['steps_per_second']:,.0f} steps/s, stepped {results['backend']} "
        f"(asked for: {results['env_type']}), {results['memory_gib']:.2f} GiB"
    )
