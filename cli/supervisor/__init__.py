"""`manage.py up`: starts every process of one machine, keeps them running, and stops them in order.

up (supervisor.py: one loop, no threads)
 ├─ reaper.py        outlives `up`, to kill what a `kill -9` of it would leave behind
 └─ launch.py ──exec──▶ valkey │ worker… │ ops │ web │ flower      each the leader of its own process group

start: valkey, then the others together
stop:  web (drains), workers (finish their batch), ops, flower, valkey
"""
