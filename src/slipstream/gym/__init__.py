"""Environments of other libraries: construction, checks and stepping, here or in worker processes.

The path of a step in worker processes::

    ForeignEnv           actions by row, and the observations of agents   foreign_env.py
      ProcessDriver      commands to all workers, waiting, lost workers   process/process_driver.py
        env worker       one process, driven through shared memory        process/env_worker.py
          SubEnvGroup    the sub-environments of one process              sub_env_group.py
            SubEnv       one environment behind a guard                   sub_env.py

In this process `SerialDriver` (`serial_driver.py`) steps a `SubEnvGroup` without a worker. Other
libraries use `gymnasium_semantics.py` in place of `ForeignEnv`.
"""
