-- The trace that a job belongs to: a W3C traceparent and, behind a space, its tracestate.
alter table treadle_jobs add column trace text;
alter table treadle_finished add column trace text;
