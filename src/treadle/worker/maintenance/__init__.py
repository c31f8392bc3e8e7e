"""What every worker does between its claims."""
