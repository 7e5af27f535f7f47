"""What a node knows of its own state: readiness, alarms, and the guards that keep it from harm."""
