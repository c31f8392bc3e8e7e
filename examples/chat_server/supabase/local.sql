-- What Supabase brings, for a PostgreSQL without it: its three roles, users, and who it is that asks.
do $$
declare
    name text;
begin
    foreach name in array array['anon', 'authenticated', 'service_role'] loop
        if to_regrole(name) is null then  -- roles are the whole server's, and another database may have made them
            execute format('create role %I nologin', name);
        end if;
    end loop;
exception when duplicate_object or unique_violation then null;  -- just now
end
$$;

create schema if not exists auth;
create table if not exists auth.users (id uuid primary key, email text);

create or replace function auth.uid() returns uuid language sql stable as
$$ select (nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub')::uuid $$;

grant usage on schema auth, public to authenticated, service_role;
grant execute on function auth.uid() to authenticated, service_role;
