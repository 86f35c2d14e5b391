-- What happened to decisions that could not be carried out? Refused and reopened escalations with the reason; none is good news.
select
    status,
    refusal,
    count(*) as messages,
    min(escalation_id) as example_id
from escalated_messages
where status in ('refused', 'reopened')
group by status, refusal

union all

select
    'neither' as status,
    'every decision so far could be carried out' as refusal,
    0 as messages,
    null as example_id
where not exists (select 1 from escalated_messages where status in ('refused', 'reopened'))
