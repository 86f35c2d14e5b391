// Google's own fake of Pub/Sub, from its Go client library, as a server for tests: pstest -port 8085.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port := flag.Int("port", 8085, "TCP port on loopback")
	flag.Parse()
	pstest.SetMinAckDeadline(time.Second) // the service takes ten seconds at least; tests are in a hurry
	server := pstest.NewServerWithPort(*port)
	defer server.Close()
	fmt.Println(server.Addr)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
}
