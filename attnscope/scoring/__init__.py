"""What a head does, as numbers with their chance and their interval."""
