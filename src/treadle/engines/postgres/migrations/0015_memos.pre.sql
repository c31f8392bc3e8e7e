-- What a job remembers between its attempts, by name.

create table @.memos (
    job uuid not null,
    name text not null,
    tenant text not null,
    kind text not null,
    state text not null check (state in ('begun', 'undone', 'parked', 'done')),
    attempt int not null,
    began_at timestamptz not null,
    at timestamptz not null,
    value json,
    primary key (job, name)
) with (fillfactor = 90);

comment on table @.memos is 'What a job remembers between its attempts. Only who holds the job writes a row; rows go with their job.';
comment on column @.memos.state is 'A row that is done never changes.';

-- Whoever may read and write jobs may do so with what they remember, and sees no more of it.
do $$
declare
    found record;
begin
    for found in
        select g.grantee::regrole as role, g.privilege_type as right from pg_class c, aclexplode(c.relacl) g
        where c.oid = '@.jobs'::regclass and g.grantee not in (0, c.relowner)
        and g.privilege_type in ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    loop
        execute format('grant %s on @.memos to %s', found.right, found.role);
    end loop;
    if (select relrowsecurity from pg_class where oid = '@.jobs'::regclass) then
        alter table @.memos enable row level security;
        alter table @.memos force row level security;
        for found in
            select p.polname as name, pg_get_expr(p.polqual, p.polrelid) as rule,
                array_to_string(array(select r::regrole from unnest(p.polroles) r), ', ') as roles
            from pg_policy p where p.polrelid = '@.jobs'::regclass and p.polname in ('treadle_worker', 'treadle_tenant')
        loop
            execute format('create policy %I on @.memos to %s using (%s) with check (%s)', found.name, found.roles,
                found.rule, found.rule);
        end loop;
    end if;
end
$$;
