"""What agents with an actor and two critics share: sac, td3."""
