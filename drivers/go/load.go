package main

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type measurement struct {
	Checked     [][]any `json:"checked"`
	Queries     int     `json:"queries"`
	Rows        int     `json:"rows"`
	Seconds     float64 `json:"seconds"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	LatenciesNs []int64 `json:"latencies_ns"`
}

// tally is what one connection, or all of them, did in a phase.
type tally struct {
	rows        int
	end         time.Duration
	latenciesNs []int64
}

// phase lets all connections run queries until its time is over or a query fails.
type phase struct {
	shape   *shape
	length  time.Duration
	start   time.Time
	failure atomic.Pointer[error]
}

func (p *phase) run(connections []connection) (tally, error) {
	tallies := make([]tally, len(connections))
	var workers sync.WaitGroup
	p.start = time.Now()
	for i, c := range connections {
		workers.Go(func() { tallies[i] = p.work(c) })
	}
	workers.Wait()
	var sum tally
	for _, t := range tallies {
		sum.rows += t.rows
		sum.end = max(sum.end, t.end)
		sum.latenciesNs = append(sum.latenciesNs, t.latenciesNs...)
	}
	if failure := p.failure.Load(); failure != nil {
		return sum, *failure
	}
	return sum, nil
}

func (p *phase) work(c connection) tally {
	var t tally
	// A context that can be cancelled would stop the others sooner, but costs lib/pq a goroutine for each query.
	for began := time.Since(p.start); began < p.length && p.failure.Load() == nil; began = time.Since(p.start) {
		rows, err := c.fetch(p.shape, nil)
		if err != nil {
			p.failure.CompareAndSwap(nil, &err)
			return t
		}
		t.end = time.Since(p.start)
		t.rows += rows
		t.latenciesNs = append(t.latenciesNs, (t.end - began).Nanoseconds())
	}
	return t
}

func openAll(open opener, dsn string, count int) ([]connection, error) {
	connections := make([]connection, 0, count)
	for range count {
		c, err := open(dsn)
		if err != nil {
			closeAll(connections)
			return nil, err
		}
		connections = append(connections, c)
	}
	return connections, nil
}

func closeAll(connections []connection) {
	for _, c := range connections {
		c.close()
	}
}

func measure(open opener, r *request) (*measurement, error) {
	checked, err := check(open, r)
	if err != nil {
		return nil, err
	}
	connections, err := openAll(open, r.DSN, r.Connections)
	if err != nil {
		return nil, err
	}
	defer closeAll(connections)
	warmup := phase{shape: &r.Shape, length: seconds(r.WarmupSeconds)}
	if _, err := warmup.run(connections); err != nil {
		return nil, err
	}
	timed := phase{shape: &r.Shape, length: seconds(r.Seconds)}
	cpuBefore := cpuTime()
	done, err := timed.run(connections)
	if err != nil {
		return nil, err
	}
	return &measurement{
		Checked:     checked,
		Queries:     len(done.latenciesNs),
		Rows:        done.rows,
		Seconds:     done.end.Seconds(),
		CPUSeconds:  (cpuTime() - cpuBefore).Seconds(),
		LatenciesNs: done.latenciesNs,
	}, nil
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}

// cpuTime is the user and system time of this program so far. Of this program itself, the call cannot fail.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
