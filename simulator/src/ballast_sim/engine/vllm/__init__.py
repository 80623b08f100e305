"""vLLM 0.32's scheduler and KV cache, in vLLM's words. What papers replace is behind `policy` and `prompt_budget`.

| here | vLLM |
| --- | --- |
| `scheduler` | v1/core/sched/scheduler.py and async_scheduler.py |
| `kv_transfers` | the connector's part of scheduler.py: WAITING_FOR_REMOTE_KVS, finished_recving, finished_sending |
| `queues`, `policy` | v1/core/sched/request_queue.py |
| `batch` | v1/core/sched/output.py |
| `kv_manager` | v1/core/kv_cache_manager.py |
| `block_pool` | v1/core/block_pool.py |
"""
