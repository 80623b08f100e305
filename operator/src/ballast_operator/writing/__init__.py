"""What a plan wants and the cluster does not have yet."""
