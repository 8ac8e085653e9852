"""Rows that are there already: every way of an upsert, what it costs, what others see, what a failure leaves."""
