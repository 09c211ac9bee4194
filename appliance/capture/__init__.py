"""The capture proxy between harness and model: its HTTP server, each rollout's open session, which recorded call a
request continues (`history`), and the client for upstream APIs with its retries (`upstream`); `wire` holds the
formats, `rendering` the way from messages to token ids and back.

It never starts a harness or an engine.
"""
