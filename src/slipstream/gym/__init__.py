"""Environments of other libraries: construction, checks and stepping, here or in worker processes.

The path of a step in worker processes::

    ForeignEnv               rows of actions and observations for agents foreign_env.py
      ProcessDriver          commands to workers, waiting, replacement process/process_driver.py
        WorkerHandle, run    one process, controlled through shared words process/env_worker.py
          SubEnvGroup        sub-environments: reset, step, restart  sub_env_group.py
            SubEnv           one environment behind a guard          sub_env.py

In this process `SerialDriver` (`serial_driver.py`) steps a `SubEnvGroup` without a worker. Other
libraries use `NativeEnv` (`gymnasium_semantics.py`) in place of `ForeignEnv`.
"""
