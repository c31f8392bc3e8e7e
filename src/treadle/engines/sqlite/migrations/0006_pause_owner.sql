-- A pause says whose it is: the operators', its tenant's own, or a budget's.

alter table treadle_pauses add column owner text not null default 'operator';
update treadle_pauses set owner = 'budget' where actor = 'budget';
