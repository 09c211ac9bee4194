#!/bin/bash
# The answer, and nothing else changed.
reward=0
[ "$(cat /workspace/answer.txt)" = "ALPHA 7" ] && [ "$(cat /workspace/notes.txt)" = "alpha 7" ] && reward=1
echo "$reward" > /logs/verifier/reward.txt
