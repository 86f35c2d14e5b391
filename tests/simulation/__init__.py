"""A world from one seed, the whole product in it, and a checker that shares no code with the product.

``python -m tests.simulation --help`` tells how to run, replay and shrink a seed. ``plan.py`` makes everything that is
random from the seed; ``world/`` is the brokers; ``actors.py`` are consumers and people; ``driver.py`` runs the product;
``checker.py`` says what is broken; ``story.py`` plays a plan from its beginning to its end.
"""
