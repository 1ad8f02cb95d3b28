"""What users test their own actors, stores and agents with."""
