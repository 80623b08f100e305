"""A real Kubernetes without Docker, for tests, CI and `make e2e`.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, CoreDNS and one real kubelet + containerd +
runc per node run inside one PID, mount and network namespace that has no way out. `python -m testbed --help` lists the
commands; docs/testbed.md explains how it works and what differs from kind.
"""
