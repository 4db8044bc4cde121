"""Ends the processes that a killed supervisor would leave behind, and ties a child's life to the supervisor's."""
