-- What did we decide the last times for each group that waits now, on the same route, and did it help?
select
    waiting.route,
    waiting.group_id,
    waiting.open_messages,
    decided.decision,
    decided.decided_by,
    decided.note,
    max(decided.decided_at) as last_decided_at,
    count(*) as messages,
    sum(case when messages.state in ('presumed', 'confirmed') then 1 else 0 end) as stayed_away,
    sum(case when messages.state in ('to_review', 'escalated', 'classified', 'held') then 1 else 0 end) as back_again
from review_groups as waiting
inner join escalated_messages as decided
    on
        decided.route = waiting.route
        and decided.group_id = waiting.group_id
        and decided.status = 'applied'
        and decided.question = 'failure'
left join messages on messages.message_id = decided.message_id
where waiting.open_messages > 0
group by
    waiting.route,
    waiting.group_id,
    waiting.open_messages,
    decided.decision,
    decided.decided_by,
    decided.note
order by waiting.open_messages desc, last_decided_at desc nulls last
