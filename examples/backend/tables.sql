create table if not exists public._ayb_sessions (
    id uuid primary key default gen_random_uuid(),
    expires_at timestamptz not null
);
create table if not exists public._ayb_webhook_deliveries (
    id uuid primary key default gen_random_uuid(),
    created_at timestamptz not null default now()
);
create table if not exists public._ayb_oauth_tokens (
    id uuid primary key default gen_random_uuid(),
    expires_at timestamptz not null,
    revoked_at timestamptz
);
create table if not exists public._ayb_oauth_authorization_codes (
    id uuid primary key default gen_random_uuid(),
    expires_at timestamptz not null,
    used_at timestamptz
);
create table if not exists public._ayb_magic_links (
    id uuid primary key default gen_random_uuid(),
    expires_at timestamptz not null
);
create table if not exists public._ayb_password_resets (
    id uuid primary key default gen_random_uuid(),
    expires_at timestamptz not null
);
create index if not exists _ayb_sessions_expire on public._ayb_sessions (expires_at);
create index if not exists _ayb_webhook_deliveries_created on public._ayb_webhook_deliveries (created_at);
