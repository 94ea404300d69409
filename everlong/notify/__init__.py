"""Notifications: who gets which, by webhook, Slack or e-mail.

    EverlongPlugin(..., notify=Notify(url="https://everlong.example.com", sinks=[Webhook(...)]))

A thread hands an event to the notifier, a workflow of its own, whose activity delivers it with the
classes of this package. Sinks are taken from configuration alone, never from what a model or a caller
says, and secrets stay in the process: a history has the names of sinks only.
"""

from everlong.notify.config import load_notify
from everlong.notify.mail import Email
from everlong.notify.sinks import Notify, Outgoing, QuietHours, Sink, SinkFailed
from everlong.notify.slack import Slack
from everlong.notify.webhook import Webhook

__all__ = [
    "Email",
    "Notify",
    "Outgoing",
    "QuietHours",
    "Sink",
    "SinkFailed",
    "Slack",
    "Webhook",
    "load_notify",
]
