package main

import (
	"slices"
	"testing"
	"time"
)

func TestClosedLoopBeginsAtOnceUntilTheEnd(t *testing.T) {
	s := newSchedule(1, 0)
	if begin, ok := s.take(999 * time.Millisecond); !ok || begin != 999*time.Millisecond {
		t.Errorf("before the end: %v, %v", begin, ok)
	}
	if _, ok := s.take(time.Second); ok {
		t.Error("a query began at the end")
	}
	if waited := s.unserved(); len(waited) != 0 {
		t.Errorf("unserved: %v", waited)
	}
}

func TestOpenLoopHandsOutWhatIsDueBeforeTheEnd(t *testing.T) {
	s := newSchedule(1, 4)
	for _, want := range []time.Duration{0, 250, 500, 750} {
		if due, ok := s.take(0); !ok || due != want*time.Millisecond {
			t.Errorf("want %d ms, got %v, %v", want, due, ok)
		}
	}
	if due, ok := s.take(0); ok {
		t.Errorf("a query was due at %v", due)
	}
	if waited := s.unserved(); len(waited) != 0 {
		t.Errorf("unserved: %v", waited)
	}
}

func TestOpenLoopCountsWhatNobodyTook(t *testing.T) {
	s := newSchedule(1, 4)
	s.take(0)
	s.take(100 * time.Millisecond)
	if _, ok := s.take(time.Second); ok {
		t.Error("a query began at the end")
	}
	want := []int64{(500 * time.Millisecond).Nanoseconds(), (250 * time.Millisecond).Nanoseconds()}
	if waited := s.unserved(); !slices.Equal(waited, want) {
		t.Errorf("unserved: %v", waited)
	}
}
