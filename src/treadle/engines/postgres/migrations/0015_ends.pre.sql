-- The latest jobs to end in a state. Its order is that of the index finished_state: only as many rows are read as are
-- asked for. A table that was not analysed since a million jobs ended would be sorted whole instead.
create function @.latest_ends(of_state text, since timestamptz, of_tenant text, at_most int)
returns table (queue text, task text, state text, error text, due boolean, at timestamptz)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
    return query
    select f.queue, f.task, f.state, case when f.state = 'failed' then f.error ->> 'type' end, false, f.finished_at
    from @.finished f
    where f.state = of_state and f.finished_at >= latest_ends.since
        and (of_tenant is null or f.tenant = of_tenant)
    order by f.finished_at desc limit at_most;
end
$$;
