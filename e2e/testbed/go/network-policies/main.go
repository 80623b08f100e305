// NetworkPolicies for the whole cluster, by kube-router's controller.
//
// kube-router writes rules for the pods of its own node. Here all nodes share one network namespace and so one table of
// rules: one process serves all of them, as one kube-proxy does. It takes each pod for one of its own node.
package main

import (
	"flag"
	"log"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/cloudnativelabs/kube-router/v2/pkg/utils"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the API server and the rights to read it")
	node := flag.String("node", "", "node whose address all pods are taken to be on")
	services := flag.String("service-cidr", "", "addresses of Services")
	flag.Parse()

	client := connect(*kubeconfig)
	config := options.NewKubeRouterConfig()
	config.HostnameOverride = *node
	config.ClusterIPCIDRs = []string{*services}
	config.EnableIPv4 = true

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	check(pods.SetTransform(onto(addressOf(client, *node))))

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	check(err)
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	check(err)
	listen(pods, controller.PodEventHandler)
	listen(policies, controller.NetworkPolicyEventHandler)
	listen(namespaces, controller.NamespaceEventHandler)

	forever := make(chan struct{})
	factory.Start(forever)
	factory.WaitForCacheSync(forever)
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats { // nobody asks for its health: it serves or ends
		}
	}()
	var group sync.WaitGroup
	group.Add(1)
	controller.Run(beats, forever, &group)
}

// Its node may not have registered yet: the cluster is just starting.
func addressOf(client kubernetes.Interface, node string) string {
	for {
		found, err := utils.GetNodeObject(client, node)
		if err == nil {
			if address, err := utils.GetPrimaryNodeIP(found); err == nil {
				return address.String()
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Pods that no kubelet has taken stay as they are.
func onto(address string) cache.TransformFunc {
	return func(object any) (any, error) {
		if pod, ok := object.(*core.Pod); ok && pod.Status.HostIP != "" {
			pod.Status.HostIP = address
		}
		return object, nil
	}
}

func connect(kubeconfig string) kubernetes.Interface {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	check(err)
	client, err := kubernetes.NewForConfig(config)
	check(err)
	return client
}

func listen(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	_, err := informer.AddEventHandler(handler)
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
