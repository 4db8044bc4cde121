"""What a frontend process does, each scenario in an interpreter of its own that gevent has patched.

python -m tests.gevent_scenarios REDIS_URL MODULE SCENARIO
"""
