#!/usr/bin/env escript
%%! +S 2
%% The questions of table.py, asked of ETS and DETS. Prints "wall_s cpu_s" of the timed region.
-mode(compile).

main([Function, Operations]) ->
    Count = list_to_integer(Operations),
    case Function of
        "ets_insert" ->
            Table = ets:new(rows, [set, private]),
            timed(fun() -> each(Count, fun(N) -> ets:insert(Table, {N, value()}) end) end);
        "ets_lookup" ->
            Table = ets:new(rows, [set, private]),
            each(Count, fun(N) -> ets:insert(Table, {N, value()}) end),
            timed(fun() -> each(Count, fun(N) -> [_] = ets:lookup(Table, N) end) end);
        "dets_insert" ->
            Table = opened(),
            timed(fun() ->
                each(Count, fun(N) ->
                    ok = dets:insert(Table, {N, value()}),
                    ok = dets:sync(Table)
                end)
            end),
            dets:close(Table);
        "dets_lookup" ->
            Table = opened(),
            ok = dets:insert(Table, [{N, value()} || N <- lists:seq(1, Count)]),
            ok = dets:sync(Table),
            timed(fun() -> each(Count, fun(N) -> [_] = dets:lookup(Table, N) end) end),
            dets:close(Table)
    end.

%% 100 bytes, which ETS shares instead of copying, as Python does with its string.
value() -> <<0:800>>.

opened() ->
    {ok, Table} = dets:open_file(rows, [{file, "rows.dets"}, {type, set}, {auto_save, infinity}]),
    Table.

each(0, _) -> ok;
each(N, Work) -> Work(N), each(N - 1, Work).

timed(Work) ->
    erlang:garbage_collect(),
    {Cpu0, _} = statistics(runtime),
    Wall0 = erlang:monotonic_time(nanosecond),
    Work(),
    Wall = erlang:monotonic_time(nanosecond) - Wall0,
    {Cpu, _} = statistics(runtime),
    io:format("~f ~f~n", [Wall / 1.0e9, (Cpu - Cpu0) / 1.0e3]).
