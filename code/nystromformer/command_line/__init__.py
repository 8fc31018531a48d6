"""What every command does before and after its own work: flags, interrupts, errors, processes."""
