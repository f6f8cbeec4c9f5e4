"""Notifications about proposals to people, and their signed answers.

Alertmanager routes, groups, deduplicates and pages. This package pushes alerts to it, posts to one
signed webhook and to Slack, and checks what comes back from Slack and Alertmanager.
"""
