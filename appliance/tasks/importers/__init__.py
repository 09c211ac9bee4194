"""Tasks that others wrote (ClawGym, Harbor, terminal-bench), turned into task folders of Corral.

They read files and never run what they import.
"""
