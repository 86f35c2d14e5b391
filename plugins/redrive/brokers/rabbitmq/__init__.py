"""RabbitMQ. ``kind.py`` says what it is, without a client library; ``adapter.py`` talks to it.

The adapter's halves are ``receiving.py`` (with ``consumption.py``) and ``publishing.py`` (with ``confirms.py`` and
``delays.py``); ``looking.py`` only reads. They share a ``session.py``, which stands on ``link.py`` and its
``frames.py``, and what the management API (``management.py``) tells of queues: once (``declared.py``) or again and
again (``measured.py``). A message is ``message.py``, on the wire ``content_header.py``, its end ``deaths.py``.
"""
