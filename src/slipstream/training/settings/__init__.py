"""What a config says, and what follows where it leaves something open."""
