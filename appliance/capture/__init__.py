"""The capture proxy between harness and model: its HTTP server, each rollout's open session, which recorded call a
request continues, and the client for upstream APIs; `wire` holds the formats, `rendering` the way from messages to
token ids and back.

It never starts a harness or an engine.
"""
