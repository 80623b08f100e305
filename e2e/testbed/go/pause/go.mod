module ballast.dev/testbed/pause

go 1.26
