"""Ends what a killed supervisor would leave behind; ties a child's life to the supervisor's."""
