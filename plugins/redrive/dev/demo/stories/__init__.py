"""``redrive demo --broker …``: the story of each broker, told with its own client on a server of its own."""
