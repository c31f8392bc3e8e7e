-- A pause says whose it is: the operators', its tenant's own, or a budget's.

alter table @.pauses add column owner text not null default 'operator'
    check (owner in ('operator', 'tenant', 'budget'));
update @.pauses set owner = 'budget' where actor = 'budget';
comment on column @.pauses.owner is 'Who may change and lift it: operator, tenant, budget.';
