-- Rows of email_processing_jobs become jobs, with their ids, times and errors; then both old tables go. Whoever runs this
-- owns treadle's tables, so rows with a past are taken. A row that was being processed is running, held by nobody: a sweep
-- catches it when its half hour is over. A key in result_summary wins over connection_id, as it always has.
do $$
begin
    if to_regclass('public.email_processing_jobs') is null then
        return;  -- this has run before, or there has never been one
    end if;
    lock table public.email_processing_jobs in access exclusive mode;  -- no row comes after the copy
    insert into public.jobs (id, user_id, job_type, status, input, error, created_at, started_at, completed_at, updated_at)
    select
        id,
        user_id,
        'email_processing',
        case status when 'processing' then 'running' else status end,
        jsonb_build_object('connection_id', connection_id::text) || coalesce(result_summary, '{}'::jsonb),
        error_message,
        created_at,
        started_at,
        completed_at,
        updated_at
    from public.email_processing_jobs;
end
$$;

drop table if exists public.email_digest_batches;
drop table if exists public.email_processing_jobs;
