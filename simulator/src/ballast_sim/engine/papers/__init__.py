"""What papers replace in vLLM's rules, behind the protocols of `vllm.policy` and `vllm.prompt_budget`.

`ranked` follows a queue order (UniBoost and those it compares itself with); `libra` is Libra's local batching.
Sarathi-Serve needs no module: it is vLLM's scheduler with a smaller max_num_batched_tokens.
"""
