-- The tables of the chat server itself. Each has a user_id, and its rows are that user's.
create or replace function public.is_record_owner(user_id uuid) returns boolean language sql stable as
$$ select user_id = auth.uid() $$;

create table if not exists external_api_connections (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users on delete cascade,
    provider text not null check (provider in ('gmail')),
    address text not null,
    refresh_token text not null,
    created_at timestamptz not null default now(),
    unique (user_id, provider, address),
    unique (id, user_id)
);

create table if not exists email_profiles (  -- what is known of a user from the mailbox
    connection_id uuid primary key,
    user_id uuid not null references auth.users on delete cascade,
    summary text not null,
    mails integer not null,
    created_at timestamptz not null default now(),
    -- Of the connection's own user: or a stranger's row would be there first, and get the summary.
    foreign key (connection_id, user_id) references external_api_connections (id, user_id) on delete cascade
);

create table if not exists agent_schedules (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users on delete cascade,
    agent_name text not null,
    schedule_cron text not null,  -- in UTC
    prompt text,
    config jsonb,
    active boolean not null default true,
    created_at timestamptz not null default now()
);

create table if not exists pending_actions (  -- what an agent proposes and its user may approve
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users on delete cascade,
    schedule_id uuid,
    action text not null,
    created_at timestamptz not null default now()
);

create table if not exists reminders (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users on delete cascade,
    title text not null,
    body text,
    remind_at timestamptz not null,
    recurrence text check (recurrence in ('daily', 'weekly', 'monthly')),
    status text not null default 'pending' check (status in ('pending', 'sent')),
    sent_at timestamptz,
    follows uuid unique,  -- the one before it: each is followed once
    created_at timestamptz not null default now(),
    unique (id, user_id),
    foreign key (follows, user_id) references reminders (id, user_id) on delete set null (follows)
);

create table if not exists notifications (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users on delete cascade,
    title text not null,
    body text not null,
    category text not null,
    metadata jsonb not null,
    created_at timestamptz not null default now()
);

create table if not exists chat_session_instances (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users on delete cascade,
    active boolean not null default true,
    updated_at timestamptz not null default now(),
    created_at timestamptz not null default now()
);

do $$
declare
    place text;
begin
    foreach place in array array['external_api_connections', 'email_profiles', 'agent_schedules', 'pending_actions',
            'reminders', 'notifications', 'chat_session_instances'] loop
        execute format('alter table %I enable row level security', place);
        execute format('drop policy if exists owners on %I', place);
        execute format('create policy owners on %I using (is_record_owner(user_id)) with check (is_record_owner(user_id))',
            place);
        execute format('drop policy if exists service on %I', place);
        execute format('create policy service on %I to service_role using (true) with check (true)', place);
        execute format('grant select, insert, update, delete on %I to authenticated, service_role', place);
    end loop;
    revoke insert, update, delete on email_profiles from authenticated;  -- the services write what is known of a user
end
$$;
