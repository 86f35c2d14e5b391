"""RabbitMQ. ``kind.py`` says what it is, without a client library; ``adapter.py`` talks to it."""
