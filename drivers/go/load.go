package main

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type measurement struct {
	Queries     int     `json:"queries"`
	Rows        int     `json:"rows"`
	AllRows     int     `json:"all_rows"`
	Seconds     float64 `json:"seconds"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	Unserved    int     `json:"unserved"`
	LatenciesNs []int64 `json:"latencies_ns"`
}

// schedule says when the queries of one phase begin. All its times count from the start of the phase.
type schedule struct {
	end   time.Duration
	rate  float64 // queries per second; 0 is the closed loop
	taken atomic.Int64
}

func newSchedule(seconds, rate float64) *schedule {
	return &schedule{end: time.Duration(seconds * float64(time.Second)), rate: rate}
}

func (s *schedule) due(slot int64) time.Duration {
	return time.Duration(float64(slot) / s.rate * float64(time.Second))
}

// take gives the time from which the latency of the next query counts, or false when no query may begin any more.
func (s *schedule) take(now time.Duration) (time.Duration, bool) {
	if now >= s.end {
		return 0, false
	}
	if s.rate == 0 {
		return now, true
	}
	due := s.due(s.taken.Add(1) - 1)
	return due, due < s.end
}

// unserved gives how long the queries waited that were due and that nobody took, once the phase is over.
func (s *schedule) unserved() []int64 {
	var waited []int64
	if s.rate == 0 {
		return waited
	}
	for slot := s.taken.Load(); s.due(slot) < s.end; slot++ {
		waited = append(waited, (s.end - s.due(slot)).Nanoseconds())
	}
	return waited
}

// tally is what one connection, or all of them, did in a phase.
type tally struct {
	queries, rows int
	end           time.Duration
	latenciesNs   []int64
}

func (t *tally) add(other tally) {
	t.queries += other.queries
	t.rows += other.rows
	t.end = max(t.end, other.end)
	t.latenciesNs = append(t.latenciesNs, other.latenciesNs...)
}

// phase lets all connections follow one schedule until it ends or a query fails.
type phase struct {
	shape    *shape
	schedule *schedule
	start    time.Time
	failure  atomic.Pointer[error]
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
		sum.add(t)
	}
	if failure := p.failure.Load(); failure != nil {
		return sum, *failure
	}
	return sum, nil
}

func (p *phase) work(c connection) tally {
	var t tally
	for {
		due, ok := p.schedule.take(time.Since(p.start))
		if !ok {
			return t
		}
		time.Sleep(due - time.Since(p.start))
		// A context that can be cancelled would stop the others sooner, but costs lib/pq a goroutine for each query.
		if p.failure.Load() != nil {
			return t
		}
		rows, err := p.shape.run(c)
		if err != nil {
			p.failure.CompareAndSwap(nil, &err)
			return t
		}
		done := time.Since(p.start)
		t.queries++
		t.rows += rows
		t.end = done
		t.latenciesNs = append(t.latenciesNs, (done - due).Nanoseconds())
	}
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

func measure(open opener, r *request) (any, error) {
	connections, err := openAll(open, r.DSN, r.Connections)
	if err != nil {
		return nil, err
	}
	defer closeAll(connections)
	// The warm-up is a closed loop also when there is a rate: so every connection takes part in it.
	warmup := phase{shape: &r.Shape, schedule: newSchedule(r.WarmupSeconds, 0)}
	before, err := warmup.run(connections)
	if err != nil {
		return nil, err
	}
	return measureWarm(connections, r, before.rows)
}

func measureWarm(connections []connection, r *request, warmupRows int) (any, error) {
	timed := phase{shape: &r.Shape, schedule: newSchedule(r.Seconds, r.Rate)}
	cpuBefore, err := cpuTime()
	if err != nil {
		return nil, err
	}
	done, err := timed.run(connections)
	if err != nil {
		return nil, err
	}
	cpuAfter, err := cpuTime()
	if err != nil {
		return nil, err
	}
	unserved := timed.schedule.unserved()
	return measurement{
		Queries:     done.queries,
		Rows:        done.rows,
		AllRows:     warmupRows + done.rows,
		Seconds:     done.end.Seconds(),
		CPUSeconds:  (cpuAfter - cpuBefore).Seconds(),
		Unserved:    len(unserved),
		LatenciesNs: append(done.latenciesNs, unserved...),
	}, nil
}

// cpuTime is the user and system time of this program so far.
func cpuTime() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
