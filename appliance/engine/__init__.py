"""vLLM as a child process, called with token ids: started (`child`), watched for hangs (`pulse`), probed for the right
weights, spread over replicas or reached at another address, and the policy that answers captured calls through it.

It reads no wire format, and only `vllm_plugin` imports vLLM or torch.
"""
