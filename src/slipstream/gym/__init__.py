"""Environments of other libraries: made, checked, and stepped here or in worker processes.

The path of a step in worker processes::

    ForeignEnv           an action a row, and what agents see of it              foreign_env.py
      ProcessDriver      orders to all workers, waiting, lost workers          process/driver.py
        Link | worker    one process, ordered by words that both share     process/worker.py
          SubEnvGroup  a batch of environments: begun, stepped, made again     copies.py
            SubEnv       one environment behind a guard                          sub_env.py

In this process `SerialDriver` (`driver.py`) steps `SubEnvGroup` without any worker. `NativeEnv`
(`native.py`) takes the place of `ForeignEnv` for other libraries.
"""
