"""The demo: a real producer, a real consumer that really fails, and the loop that brings messages back."""
